"""Tables: rows with named columns from CSV, Parquet, Arrow, JSON lines or SQL, prepared for training."""
