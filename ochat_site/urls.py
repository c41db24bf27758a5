"""Every HTTP route that Django answers."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, path
from django.views.generic import TemplateView

from ochat_site import openapi

urlpatterns: list[URLPattern | URLResolver] = [
    path("", TemplateView.as_view(template_name="landing.html"), name="landing"),
    path("admin/", admin.site.urls),
    path("docs/", TemplateView.as_view(template_name="docs.html"), name="docs"),
    path("docs/openapi.json", openapi.description, name="openapi"),
]
