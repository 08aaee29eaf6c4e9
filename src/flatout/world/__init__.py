"""Layer 3: the processes of a run: how they meet, agree, exchange, and who watches over them."""
