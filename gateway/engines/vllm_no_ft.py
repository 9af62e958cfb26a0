"""vLLM that was started without fault tolerance, in any version: all there is to read is ``GET /health``."""

from gateway.engines.dialect import Reply, UnreadableError
from gateway.engines.replies import refusal_text
from gateway.engines.vllm_0_33 import Vllm033
from motor_ft.model.engine import EngineObservation, EngineStatus, Instruction, Problem


class VllmNoFt(Vllm033):
    """See gateway.engines.dialect.Dialect; it takes no order, so that only reading differs."""

    name = "vllm_no_ft"
    instructions = frozenset[Instruction]()
    status_path = "/health"

    def read_status(self, rank: int, reply: Reply) -> EngineObservation:
        """200 while the engine process lives, 503 once it is gone (engine-contract 1.5); raises UnreadableError."""
        match reply.status:
            case 200:
                return EngineObservation(rank, EngineStatus.HEALTHY)
            case 503:
                return EngineObservation(rank, EngineStatus.DEAD)
            case _:
                raise UnreadableError(Problem.HTTP_STATUS, refusal_text(reply))
