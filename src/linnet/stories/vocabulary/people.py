"""Names, animals and family."""

from linnet.stories.entities import Gender

GIRLS = ("Lily", "Mia", "Anna", "Emma", "Sue", "Lucy", "Amy", "Zoe", "Rosie", "Ella", "Molly", "Nora")
BOYS = ("Tom", "Ben", "Max", "Sam", "Tim", "Jack", "Leo", "Finn", "Joe", "Danny", "Oscar", "Adam")
ANIMAL_NAMES: tuple[tuple[str, Gender], ...] = (
    ("Pip", "m"),
    ("Coco", "f"),
    ("Daisy", "f"),
    ("Rusty", "m"),
    ("Luna", "f"),
    ("Bruno", "m"),
    ("Dot", "f"),
    ("Milo", "m"),
    ("Poppy", "f"),
    ("Otto", "m"),
    ("Ruby", "f"),
    ("Gus", "m"),
)
SPECIES = ("rabbit", "bear", "fox", "mouse", "duck", "squirrel", "frog", "hedgehog", "cat", "pig", "turtle", "owl")
PETS = ("puppy", "kitten", "lamb", "pony", "parrot", "goat")
LOOKS = ("little", "little", "little", "small", "young", "kind", "happy", "clever")

PARENTS: tuple[tuple[str, Gender], ...] = (("Mom", "f"), ("Dad", "m"), ("Grandma", "f"), ("Grandpa", "m"))
