"""The index as a service: an ASGI app that answers searches, and many clients of it together.

Nothing else imports this package: it needs Starlette and uvicorn, which the extra ``serve`` brings.
"""
