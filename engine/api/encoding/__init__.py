"""Encodes values the way Go prints them, and digests of them, for files that a kubelet also reads; `counts`
writes numbers of things in words.
"""
