"""The n-gram model with modified Kneser-Ney smoothing: what a model of counts reaches on the same tokens.

It stands among training because that is the lowest room that knows prepared tokens, sampling and likelihood, all of
which it has in common with the other models; what makes it is counting.
"""
