"""The processes of a run: how they meet, agree, exchange, and who watches over them."""
