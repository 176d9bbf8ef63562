"""What vLLM calls in each of its processes: makes {"kv_connector": "TesseraConnector"} known, so
that no module path is needed."""


def register() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(
            "TesseraConnector", "tessera.vllm", "TesseraConnector"
        )
    except ValueError:
        pass  # vLLM calls plug-ins more than once in a process
