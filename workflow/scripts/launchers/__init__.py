"""How ranks are started on a machine or by a scheduler, watched and ended: one launcher for each kind of site."""
