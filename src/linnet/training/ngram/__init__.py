"""The n-gram model with modified Kneser-Ney smoothing: what a model of counts reaches on the same tokens.

It is part of `training` because that is the lowest package that knows prepared tokens, sampling and likelihood.
"""
