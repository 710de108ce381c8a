"""The recipe that makes a draft for a target: write text, train, export, evaluate.

One command a step: `python -m pyspec.models.recipe.write | train | export | evaluate`.
"""
