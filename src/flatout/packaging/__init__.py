"""From a finished run to a Package: one folder that takes raw rows and gives named answers, checked against the run.

    package/
      manifest.json        format, version, and the SHA-256 of every other file
      card.json            recipe, data fingerprint, plan, metrics, versions, and how the run was checked
      signature.json       raw inputs, outputs, classes
      fitted.json          what was learnt from the data: the host part (raw values to tensors), and how files are read
      program.json         the graph from prepared tensors to outputs, the device part included, without weights
      weights.safetensors  all tensors of the program, once
      model.onnx           the program for onnxruntime, from raw inputs if possible; refers to weights.safetensors
      samples.safetensors  up to 256 prepared rows with the run's own outputs
      statistics.json      how the training rows are distributed, column by column
      samples.json         the raw rows of those samples, where they can be written as JSON

Nothing in it is pickled or compiled, and reading it runs no code: a program may only call operators that `operators` lists.
"""
