"""Django: what holdfast needs of the settings, and a database for the test."""

from __future__ import annotations

import os

HOLDFAST_URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

SECRET_KEY = "only for the example"
INSTALLED_APPS = ["examples.frameworks.django_shop"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.db")},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
