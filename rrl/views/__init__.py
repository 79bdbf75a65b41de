"""Views of the journal: report, exports, figures, TensorBoard and the terminal."""
