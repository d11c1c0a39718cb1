"""Rows as the published data sets have them, one kind for each task of the suites; the texts are made up."""

ROWS = {
    "arc_challenge": [
        {
            "question": "Which of these floats on water?",
            "choices": {"text": ["a stone", "a leaf", "a coin", "a nail"], "label": ["A", "B", "C", "D"]},
            "answerKey": "B",
        },
        {
            "question": "What does a plant need?",
            "choices": {"text": ["light", "noise", "sand"], "label": ["1", "2", "3"]},
            "answerKey": "1",
        },
    ],
    "hellaswag": [
        {
            "activity_label": "Roof repair",
            "ctx_a": "A man sits on a roof.",
            "ctx_b": "he and Ann",
            "ctx": "A man sits on a roof. he and Ann",
            "endings": ["pull up  tiles [step] slowly.", "fly away.", "sing.", "eat the naïve cake."],
            "label": "0",
        },
        {
            "activity_label": "Home",
            "ctx_a": "How to fold a chair [title] Wipe it. [step] Use a cloth.",
            "ctx_b": "",
            "ctx": "How to fold a chair [title] Wipe it. [step] Use a cloth.",
            "endings": ["[title] Dry it.", "Paint it.", "Sell it.", "Lift it."],
            "label": "3",
        },
    ],
    "openbookqa": [
        {
            "question_stem": "Predators eat",
            "choices": {"text": ["lions", "people", "bunnies", "grass"], "label": ["A", "B", "C", "D"]},
            "answerKey": "C",
        }
    ],
    "piqa": [{"goal": "Make a pillow.", "sol1": "Fill a bag with wool.", "sol2": "Fill a tin. ", "label": 0}],
    "siqa": [
        {
            "context": "Kim stayed out late.",
            "question": "What does Kim do next?",
            "answerA": "sleep",
            "answerB": "sing",
            "answerC": "run away",
            "label": "1",
        }
    ],
    "winogrande": [
        {
            "sentence": "Ann gave Eve the book because _ had read it.",
            "option1": "Ann",
            "option2": "Eve",
            "answer": "1",
        }
    ],
    "truthfulqa_mc2": [
        {
            "question": "What happens if you swallow gum?",
            "mc1_targets": {"choices": ["Nothing much.", "It stays for years."], "labels": [1, 0]},
            "mc2_targets": {"choices": ["Nothing much.", "It leaves you.", "It stays for years."], "labels": [1, 1, 0]},
        }
    ],
}
ROWS |= {
    "boolq": [
        {"passage": "Salt is a mineral.", "question": "is salt a metal", "label": 0},
        {"passage": "Ice floats on water.", "question": "does ice float", "label": 1},
    ],
    "wic": [
        {
            "word": "run",
            "sentence1": "She runs a shop.",
            "sentence2": "He ran to the sea.",
            "start1": 4,
            "end1": 8,
            "start2": 3,
            "end2": 6,
            "label": 0,
        },
        {
            "word": "bank",
            "sentence1": "The bank is closed.",
            "sentence2": "Two banks lend money.",
            "start1": 4,
            "end1": 8,
            "start2": 4,
            "end2": 9,
            "label": 1,
        },
    ],
    "cb": [
        {"premise": "B: I doubt it rained.", "hypothesis": "it rained", "label": 2},
        {"premise": "Ann knew that it rained.", "hypothesis": "it rained", "label": 0},
    ],
    "wsc": [
        {
            "text": 'Ann ( a friend ) did n\'t thank Eve , because she said " no " .',
            "span1_index": 0,
            "span1_text": "Ann",
            "span2_index": 10,
            "span2_text": "she",
            "label": 0,
        },
        {
            "text": "The cup fell off the shelf because it was full.",
            "span1_index": 0,
            "span1_text": "The cup",
            "span2_index": 7,
            "span2_text": "it",
            "label": 1,
        },
    ],
    "rte": [
        {"premise": "Rome lies on the Tiber.", "hypothesis": "The Tiber flows through Rome.", "label": 0},
        {"premise": "A ship left.", "hypothesis": "A ship sank.", "label": 1},
    ],
    "pubmedqa": [
        {
            "QUESTION": "Does tea help sleep?",
            "CONTEXTS": ["Forty people drank tea.", "They slept as before."],
            "LONG_ANSWER": "It did not.",
            "final_decision": "no",
        },
        {
            "QUESTION": "Is rest good?",
            "CONTEXTS": ["Rest was studied."],
            "LONG_ANSWER": "Unclear.",
            "final_decision": "maybe",
        },
    ],
    "logiqa": [
        {
            "label": "c",
            "context": "All birds lay eggs. Tom is a bird.",
            "question": "What follows?",
            "options": ["Tom flies.", "Tom sings.", "Tom lays eggs.", "None."],
        },
        {"label": "a\n", "context": "Some are red.", "question": "Which?", "options": ["Some.", "All.", "No.", "One."]},
    ],
}
ROWS["arc_easy"] = ROWS["arc_challenge"]

YAML_FILES = {
    "arc_challenge": ("arc/arc_challenge.yaml", "test"),
    "arc_easy": ("arc/arc_easy.yaml", "test"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "openbookqa": ("openbookqa/openbookqa.yaml", "test"),
    "piqa": ("piqa/piqa.yaml", "validation"),
    "siqa": ("siqa/siqa.yaml", "validation"),
    "winogrande": ("winogrande/default.yaml", "validation"),
    "truthfulqa_mc2": ("truthfulqa/truthfulqa_mc2.yaml", "validation"),
    "boolq": ("super_glue/boolq/default.yaml", "validation"),
    "wic": ("super_glue/wic/default.yaml", "validation"),
    "cb": ("super_glue/cb/default.yaml", "validation"),
    "wsc": ("super_glue/wsc/default.yaml", "validation"),
    "rte": ("super_glue/rte/default.yaml", "validation"),
    "pubmedqa": ("pubmedqa/pubmedqa.yaml", "test"),
    "logiqa": ("logiqa/logiqa.yaml", "test"),
}
