"""Every record of the protocol, defined once: the model that kernel, dialects and client share.

Owns: one frozen struct per record of the protocol's schema, with its names and members, and the closed
vocabularies. Does not own: events (`sessions_app.events`), params and results of methods
(`ochat_site.dialects.ochat1.types`). Nothing here knows Django. The parts are this package's own business;
import from the package.

A member that may be missing is `UNSET`, never None; a tagged union is one class per variant; free JSON and
the payload of a history entry stay encoded (`msgspec.Raw`). Constraints bind decoding (wire 1); a struct
built in code is trusted, except for what its `__post_init__` refuses with ValueError.
"""

from sessions_app.records.access import *  # noqa: F403 - one namespace, its parts split by subject only
from sessions_app.records.base import *  # noqa: F403 - as above
from sessions_app.records.catalog import *  # noqa: F403 - as above
from sessions_app.records.enums import *  # noqa: F403 - as above
from sessions_app.records.history import *  # noqa: F403 - as above
from sessions_app.records.items import *  # noqa: F403 - as above
from sessions_app.records.sessions import *  # noqa: F403 - as above
from sessions_app.records.stream import *  # noqa: F403 - as above
from sessions_app.records.work import *  # noqa: F403 - as above
