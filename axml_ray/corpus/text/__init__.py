"""Texts as numbers: composition, words, tokenizer, word vectors."""
