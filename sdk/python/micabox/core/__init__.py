"""The client, written once: coroutines over `micabox.io`, for the blocking face and that of asyncio."""
