"""Sites: their description written from what a cluster says, checked by the doctor, and whether runs can be started there at all."""
