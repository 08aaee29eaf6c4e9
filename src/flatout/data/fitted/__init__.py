"""What was learnt from data, of every kind of source: all that a trained model needs to take raw rows.

    fitted = Fitted.from_json(json.load(file))           # what a run keeps in data.json under "fitted"
    rows = fitted.rows({"age": [39], "job": ["cook"]})   # host part: raw values to tensors
    batch = fitted.device(rows)                          # device part, an nn.Module: what evaluation feeds the model

It needs neither the training data nor a Source, and imports no pyarrow. What raw rows are, by `fitted.host.kind`:

    table      columns by name, or a list of rows as dicts: numbers, text, dates, None where missing
    photos     a list of the bytes of image files, or of uint8 arrays [height, width, 3]
    text       text, or rows of token ids, all of one length
    sequences  a list of texts, or of rows of token ids of any lengths
    arrays     x as an array, or columns by name

`fitted.signature` lists the raw inputs, the columns that the model gets, and the names of the classes.
"""

from __future__ import annotations

from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.host import HostPart, RawInput, Signature

__all__ = ["Fitted", "HostPart", "RawInput", "Signature"]
