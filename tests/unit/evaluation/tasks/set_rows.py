"""Rows as the published data sets have them, one kind for each task of suite pldr; the texts are made up."""

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
}
