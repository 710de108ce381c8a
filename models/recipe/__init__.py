"""The recipe that makes a draft for a target: write text, train, export, evaluate.

One command a step: `python -m models.recipe.write | train | export | evaluate`, from the root of a clone.
"""
