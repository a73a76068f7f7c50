"""SGLang diffusion plugin: selects liteattention_rocm as an attention backend.

SGLang finds :func:`sglang_integration.plugin.register` through the entry-point group
``sglang.multimodal_gen.plugins``. Nothing outside this package imports SGLang.
"""
