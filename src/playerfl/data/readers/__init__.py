"""One file per format: tables, images, texts and arrays, read with bounded memory."""
