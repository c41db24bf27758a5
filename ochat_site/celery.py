"""The Celery application: how tasks travel.

A task only says "look at this row"; the rows are the queue of record, and the sweep finds what a lost message
spoke of. So a message is gone once it is delivered, a task keeps no result, and publishing one neither retries nor
waits: a dead broker never delays a reply.

Does not own the tasks (`jobs_app/tasks.py`) nor the process that runs them (`manage.py worker`).
"""

import os

from celery import Celery
from celery.signals import setup_logging
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ochat_site.settings")

PUBLISH_TIMEOUT_SECONDS = 1.0

# Without the fix-ups for Django, which run its system checks at every start of a worker, loading all that serves HTTP, and
# close the database connections around every task. Tasks of ours use none.
app = Celery("ochat", fixups=[])
# Tasks are published from threads of their own, which see the default application only.
app.set_default()
app.conf.update(
    broker_url=settings.ENV.redis.broker_url if settings.ENV.redis is not None else "memory://",
    broker_transport_options={
        # A message that is delivered is gone from Redis. Acknowledging it would take two transactions of Redis for each.
        "ack_emulation": False,
        "socket_timeout": PUBLISH_TIMEOUT_SECONDS,
        "socket_connect_timeout": PUBLISH_TIMEOUT_SECONDS,
        "max_retries": 0,
        "global_keyprefix": "ochat:",
    },
    broker_connection_timeout=PUBLISH_TIMEOUT_SECONDS,
    # A worker waits for a broker that is away, however long, and goes on when it is back.
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_publish_retry=False,
    task_acks_late=False,
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    # Of no effect with early acks; Celery warns unless it is set.
    worker_cancel_long_running_tasks_on_connection_loss=True,
    enable_utc=True,
    timezone="UTC",
    imports=("jobs_app.tasks",),
)


@setup_logging.connect
def keep_our_logging(**_: object) -> None:
    """Listening is all it takes: Celery configures logging unless somebody does."""
