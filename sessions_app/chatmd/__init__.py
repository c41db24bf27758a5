"""The ChatMD language (behaviour 17): prompts and messages as text with a closed set of tags.

Text becomes tokens (`lexer`), nested nodes (`tree`), nodes with their imports expanded (`imports`), typed
elements (`elements`, made by `parser`) and history items (`items`). `pin` does all of it for a prompt and
keeps its bytes, `message` for what a client sends; `export` goes back from history to text.

Owns: the language and the content-addressed capture of a prompt's sources. Does not own: where captured bytes
are kept, which tools exist, fetching remote documents, running agents. Nothing here knows Django.
"""
