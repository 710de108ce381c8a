"""Requests of the shapes that programs send which people point at such a server.

Written from what they sent, and from their documentation and users' reports; texts and tools are ours. Of each: its program,
path, headers, and body.
"""

import json

PATH_SCHEMA = {
    "type": "object", "properties": {"path": {"type": "string", "description": "Where it lies."}},
    "required": ["path"], "additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#",
}  # fmt: skip
ODD_SCHEMA = {
    "type": "object",
    "properties": {
        "script": {"type": "string", "maxLength": 524288}, "at": {"$ref": "#/$defs/At"},
        "name": {"type": "string", "pattern": r"^\w+$"}, "value": {"title": "Value"},
    },
    "$defs": {"At": {"type": "object", "properties": {"line": {"type": "integer"}}}},
}  # fmt: skip
"""What schemas of agents' tools have, and what no grammar can hold, or was made of once."""
ODD = {"name": "run", "description": "Runs.", "parameters": ODD_SCHEMA}
READ = {"name": "read_file", "description": "Reads a file.", "parameters": PATH_SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": READ}, {"type": "function", "function": ODD}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}  # fmt: skip
CODE = "def add(a, b):\n    return a - b\n"
USAGE = {"include_usage": True}

OPEN_WEBUI = {
    "a chat": {
        "stream": True, "model": "tiny",
        "messages": [
            {"role": "system", "content": "Answer shortly."}, {"role": "user", "content": "What is here?"},
            {"role": "assistant", "content": "A file."},
            {"role": "user", "content": [{"type": "text", "text": "And in it?"}]},
        ],
        "stream_options": USAGE, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
        "frequency_penalty": 0.1, "seed": 7, "stop": ["###"], "max_tokens": 12, "logit_bias": {},
    },
}  # fmt: skip

CONTINUE = {
    "an edit": {
        "messages": [
            {"role": "system", "content": "You are in agent mode."},
            {"role": "user", "content": [{"type": "text", "text": CODE}]},
            {"role": "assistant", "content": " ", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": CODE},
        ],
        "model": "tiny", "max_tokens": 12, "stream": True, "stream_options": USAGE, "tools": CHAT_TOOLS,
        "parallel_tool_calls": False,
    },
}  # fmt: skip
CONTINUE_COMPLETES = {
    "a line": {
        "prompt": f"<fim_prefix>{CODE}<fim_suffix>\n<fim_middle>", "suffix": "", "model": "tiny", "max_tokens": 12,
        "temperature": 0.01, "stop": ["<fim_prefix>", "<fim_suffix>", "/src/", "#- coding", "```"], "stream": True,
    },
}  # fmt: skip

AIDER = {
    "an edit": {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Act as an expert developer.\nUse blocks."},
            {"role": "user", "content": "Change get to put."},
            {"role": "assistant", "content": "<<<<<<< SEARCH\nget\n=======\nput\n>>>>>>> REPLACE"},
            {"role": "user", "content": "I switched to a new code base."}, {"role": "assistant", "content": "Ok."},
            {"role": "user", "content": f"*Trust this message*\n\na.py\n```\n{CODE}```"},
            {"role": "assistant", "content": "Ok, I will."}, {"role": "user", "content": "It should add."},
            {"role": "system", "content": "Only ever return code in a block."},
        ],
        "temperature": 0, "stream": True, "max_tokens": 12,
    },
}  # fmt: skip

EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
MESSAGES_AGENT = {
    "a turn": {
        "model": "tiny", "max_tokens": 32000, "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: v=1; cch=1a2b3;"},
            {"type": "text", "text": "You are an agent.", **EPHEMERAL},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nToday.\n</system-reminder>"},
                {"type": "text", "text": "It should add.", **EPHEMERAL},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "c2ln"},
                {"type": "text", "text": "I read it."},
                {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a.py"}},
            ]},
            {"role": "user", "content": [
                {"tool_use_id": "toolu_1", "type": "tool_result", "content": CODE, "is_error": False, **EPHEMERAL},
            ]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "toolu_2", "name": "ToolSearch", "input": {"query": "select:stop"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "tool_reference", "tool_name": "stop"}]},
                {"type": "text", "text": "Tool loaded."},
            ]},
            {"role": "system", "output_config": {"effort": "medium"},
             "content": [{"type": "text", "text": "2000 tokens left", **EPHEMERAL}]},
        ],
        "tools": [
            {"name": "read_file", "description": "Reads a file.", "input_schema": PATH_SCHEMA},
            {"name": "run", "description": "Runs.", "input_schema": ODD_SCHEMA},
            {"name": "stop", "description": "Stops.", "input_schema": PATH_SCHEMA, "defer_loading": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": json.dumps({"device": "d", "session": "s"})},
        "thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    },
    "a probe": {
        "model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}],
        "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1,
    },
}  # fmt: skip

RESPONSES_AGENT = {
    "a turn": {
        "model": "tiny", "instructions": "You are an agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: on."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "It should add."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I look."}],
             "content": None, "encrypted_content": None},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I read it."}]},
            {"type": "function_call", "name": "read_file", "arguments": '{"path":"a.py"}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": CODE},
        ],
        "tools": [
            {"type": "function", **READ, "strict": False},
            {"type": "function", **ODD, "strict": False},
            {"type": "custom", "name": "apply_patch", "description": "Edits.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False, "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-key",
        "text": {"verbosity": "low"}, "service_tier": "auto", "client_metadata": {"installation": "i"},
    },
    "a patch": {
        "model": "tiny", "instructions": "You are an agent.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "It should add."}]},
            {"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch",
             "input": "*** Begin Patch\n*** Update File: a.py\n-    return a - b\n+    return a + b\n*** End Patch"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Success."},
            {"type": "function_call", "name": "search", "namespace": "mcp__notes", "arguments": "{}", "call_id": "call_3"},
            {"type": "function_call_output", "call_id": "call_3", "output": "Nothing."},
            {"type": "tool_search_call", "call_id": "call_4", "status": "completed", "execution": "client",
             "arguments": {"query": "agents"}},
            {"type": "tool_search_output", "call_id": "call_4", "status": "completed", "execution": "client", "tools": [
                {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [
                    {"type": "function", "name": "spawn", "description": "Begins one.", "strict": False, "defer_loading": True,
                     "parameters": PATH_SCHEMA},
                ]},
            ]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Approvals: never."}]},
        ],
        "tools": [
            {"type": "custom", "name": "apply_patch", "description": "Edits.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
            {"type": "namespace", "name": "mcp__notes", "description": "Notes.", "tools": [
                {"type": "function", "name": "search", "description": "Searches.", "strict": False,
                 "parameters": {"type": "object", "properties": {}}},
            ]},
            {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": PATH_SCHEMA},
        ],
        "tool_choice": "auto", "parallel_tool_calls": True, "store": False, "stream": True,
    },
}  # fmt: skip

BEARER = {"Authorization": "Bearer none"}
_GROUPS = (
    ("Open WebUI", "/v1/chat/completions", {**BEARER, "X-OpenWebUI-User-Name": "n"}, OPEN_WEBUI),
    ("Continue", "/v1/chat/completions", {**BEARER, "api-key": "none"}, CONTINUE),
    ("Continue", "/v1/completions", {**BEARER, "api-key": "none"}, CONTINUE_COMPLETES),
    ("aider", "/v1/chat/completions", {**BEARER, "HTTP-Referer": "https://aider.chat"}, AIDER),
    (
        "an agent", "/v1/messages?beta=true",
        {"x-api-key": "none", "anthropic-version": "2023-06-01", "anthropic-beta": "a-1,b-2"}, MESSAGES_AGENT,
    ),
    ("an agent", "/v1/responses", {**BEARER, "originator": "cli"}, RESPONSES_AGENT),
)  # fmt: skip
REQUESTS = [
    (f"{program}: {name}", path, headers, body)
    for program, path, headers, bodies in _GROUPS
    for name, body in bodies.items()
]
