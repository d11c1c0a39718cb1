"""A paper's measurements as a file, for any models: `linnet evaluate MODEL... --protocol FILE.yaml`."""
