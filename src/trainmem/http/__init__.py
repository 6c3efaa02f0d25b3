"""The published API: the same simulation over HTTP.

In reading order: `wire` (strict JSON, the answer as text), `answer` (read with no trust, and
compared), `remote_check` (a server asked in the background), the client in `response` (what comes
back), `endpoint` (where it goes, by which proxy, whom it trusts) and `client`, and the server in
`bodies` (requests and answers as JSON), `protocol` (connections), `middleware` and `server`.
"""
