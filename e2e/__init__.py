"""End-to-end harness: one Wan2.1-T2V video per attention backend, made through SGLang, compared."""
