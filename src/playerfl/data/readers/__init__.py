"""One file per format: tables, pictures, texts and arrays, read with bounded memory."""
