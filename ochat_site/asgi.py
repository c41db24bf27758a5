"""The ASGI application that `manage.py serve` runs."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ochat_site.settings")

application = ProtocolTypeRouter({"http": get_asgi_application()})
