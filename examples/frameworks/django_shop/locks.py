"""One client for the project: `from examples.frameworks.django_shop.locks import locks`."""

from __future__ import annotations

from django.conf import settings

import holdfast

locks = holdfast.connect(settings.HOLDFAST_URL)  # connects when first used, again after a fork
