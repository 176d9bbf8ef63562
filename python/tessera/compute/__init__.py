"""Rows of a model at any positions, computed with an engine's own modules: what blending needs in
vLLM and in SGLang. Needs torch and no engine."""
