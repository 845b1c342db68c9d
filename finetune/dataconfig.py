"""stub until merge"""

from pydantic import BaseModel


class DataConfig(BaseModel):
    """x"""
