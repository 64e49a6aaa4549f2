"""One file a format: tables, pictures, texts and arrays, read with bounded memory."""
