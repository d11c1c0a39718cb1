"""A script that uses every name of the package; `make check` checks its types."""

import linnet

manifest = linnet.prepare(["text.txt"], "data", tokenizer="char")
print(manifest.tokenizer.vocab_size + 1)
run = linnet.train("run", model="tiny-ted", data="data", training={"steps": 2, "batch_size": 1})
print(run.summary["step"] + 1, run.model.name)
(listed,) = linnet.runs(".").rows()
assert listed["validation.bits_per_byte"] == listed["bits_per_byte"] == run.summary["validation"]["bits_per_byte"]
print(len(linnet.load(run.model).logits("the")))
found = linnet.evaluate(run.model, "data", context_length=32, limit_tokens=200)
print(found.causal.bits_per_byte > 0)
session = linnet.Session(linnet.load(run.model))
session.feed("the")
print(len(session.generate(4, temperature=0.0)) <= 4)
shape = linnet.design("mixed", max_parameters=4e6, method="evolution", settings={"search": {"iterations": 3}})
print(shape.model.d_model > 0)
planned = linnet.plan(parameters=1e6, throughput=1e12, vocab_size=300)
print(planned.tokens > 0, isinstance(planned.model, linnet.ModelSpec))
comparison = {
    "text": {"files": ["text.txt"]},
    "model": "tiny-ted",
    "training": {"steps": 1},
    "seeds": [0],
    "runs": [{"name": "one"}],
}
print(linnet.compare(comparison, "compared").runs[0].name)
try:
    linnet.export(run.model, "out")
except linnet.UserError as error:
    print(error)
