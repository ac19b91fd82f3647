"""Declare products once: program, inputs, traits of studies that have them, texts.

A product is a figure or a table of a study.
"""
