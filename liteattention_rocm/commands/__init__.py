"""One module per command of `liteattention-rocm`: `add_options(parser)` and `run(options) -> exit code`."""
