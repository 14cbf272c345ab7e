"""Every way a request can fail, with the status the caller sees and the label the metrics count it under."""

from __future__ import annotations

from carpool.errors import UNBATCHABLE as UNBATCHABLE
from carpool.errors import Abandoned as Abandoned
from carpool.errors import BadRequest as BadRequest
from carpool.errors import BatchStatus as BatchStatus
from carpool.errors import BodyTooLate as BodyTooLate
from carpool.errors import CarpoolError as CarpoolError
from carpool.errors import DeadlineExceeded as DeadlineExceeded
from carpool.errors import Draining as Draining
from carpool.errors import HeadTooLate as HeadTooLate
from carpool.errors import MemoryFull as MemoryFull
from carpool.errors import NoInstances as NoInstances
from carpool.errors import NotIsolated as NotIsolated
from carpool.errors import NotMergeable as NotMergeable
from carpool.errors import OutOfSockets as OutOfSockets
from carpool.errors import Overloaded as Overloaded
from carpool.errors import PayloadTooLarge as PayloadTooLarge
from carpool.errors import TooManyModels as TooManyModels
from carpool.errors import TooManySuspects as TooManySuspects
from carpool.errors import Unbatchable as Unbatchable
from carpool.errors import Uneven as Uneven
from carpool.errors import UnsupportedEncoding as UnsupportedEncoding
from carpool.errors import UpstreamBroken as UpstreamBroken
from carpool.errors import UpstreamClosed as UpstreamClosed
from carpool.errors import UpstreamError as UpstreamError
from carpool.errors import UpstreamRpcStatus as UpstreamRpcStatus
from carpool.errors import UpstreamStatus as UpstreamStatus
from carpool.errors import UpstreamTimeout as UpstreamTimeout
from carpool.errors import UpstreamUnreachable as UpstreamUnreachable
from carpool.errors import WouldBeLate as WouldBeLate
from carpool.errors import bare as bare
from carpool.errors import reasons as reasons
