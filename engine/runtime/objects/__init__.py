"""Define records, references and errors that all parts of the embedded runtime share."""
