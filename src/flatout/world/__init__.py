"""The processes of a run: how they connect, agree, exchange data and are watched."""
