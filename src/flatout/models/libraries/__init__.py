"""Models of other libraries, with their pretrained weights and with what their inputs have to look like."""
