"""Declare every figure and every table once: program, inputs, traits of studies that have it, texts."""
