"""How far beyond its trained length a model reads: the loss by position, rotary ones as they are or scaled."""
