"""The n-gram model with modified Kneser-Ney smoothing: the baseline of a model that only counts.

It is part of `training` because that is the lowest package that knows prepared tokens, sampling and likelihood.
"""
