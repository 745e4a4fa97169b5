"""The engine behind HTTP: the OpenAI protocol, over starlette. `app.build` makes the application.

request → bodies (read, parse) → schemas (check) → routes (what is asked for) → choices (the engine) → streams
                                                               errors: whatever fails, in OpenAI's shape
"""
