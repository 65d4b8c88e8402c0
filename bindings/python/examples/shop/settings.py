"""The least settings that Django needs for the commands beside it."""

SECRET_KEY = "of the example"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
