"""Foundations: descriptions, errors, amounts, files, tables of data. Knows nothing of models."""
