"""Examples of requests; the tests send each of them."""

from typing import Any

CREATE_SNAPSHOT_EXAMPLES: dict[str, Any] = {
    "question": {
        "summary": "A question over one project",
        "value": {
            "runId": "6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11",
            "attemptId": "0b8f3f0c-7a53-4f6a-8c3e-5a1d2b3c4d5e",
            "query": "How are reservations cancelled?",
            "language": "en",
            "scope": {"projects": ["booking"], "maxClassification": "internal"},
            "budget": {"maxTokens": 4000, "reservedForOutput": 500},
        },
    },
    "task": {
        "summary": "A question with a task of the caller's own",
        "value": {
            "runId": "6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11",
            "stepId": "3c2f1e0d-5b6a-4c7d-8e9f-0a1b2c3d4e5f",
            "attemptId": "9d7e2f6f-5f0b-4a11-8f1c-0c5e0a574a3e",
            "strategy": "default",
            "query": "How are reservations cancelled?",
            "scope": {"projects": ["booking"], "sources": {"deny": ["drafts/*"]}},
            "budget": {
                "maxTokens": 8000,
                "reservedForOutput": 1000,
                "encoding": "o200k_base",
                "format": "messages",
            },
            "items": [
                {
                    "class": "task",
                    "sourceId": "task:41",
                    "sourceRevision": "1",
                    "chunkId": "0",
                    "text": "Add a cancel endpoint.",
                    "trustTier": "user",
                }
            ],
        },
    },
}
