"""Are the rows that are served still those that the model was trained on?"""
